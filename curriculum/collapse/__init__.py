"""Indicators of policy collapse, alarms on them, and the quality of those alarms."""
