"""Rules: functions of one library with their derivatives, in a form that other libraries can embed."""
