"""How a host checks itself: the settings, and the timer or cron line that starts the check."""
