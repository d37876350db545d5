"""Plan conversions: decide from facts about an array and the options which steps are needed. Nothing runs."""
