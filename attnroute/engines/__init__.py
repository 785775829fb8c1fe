"""What a serving engine does by itself: its data file read by a few generic algorithms."""
