"""Facts for `bringup doctor`: packages, the machine, the installation."""
