"""The loop end to end: calibrate, train a ladder, forecast, run, check, plan, serve, report."""
