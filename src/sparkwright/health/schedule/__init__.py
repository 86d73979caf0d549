"""The scheduled checks of a host: their settings, and the timer or cron line that starts them."""
