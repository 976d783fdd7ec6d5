"""Every page of bringup/codes: its example is run, and its output is compared."""
