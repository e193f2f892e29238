"""Do the alarms of collapse ring in time, and only then? Also the picture of what a teacher's setting trades off."""
