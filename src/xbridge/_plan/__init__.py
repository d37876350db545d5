"""Decide a conversion: from facts about an array and the options, a list of steps."""
