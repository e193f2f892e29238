"""Is training about to collapse: indicators, the alarms they ring, the monitor of a run and the quality of alarms."""
