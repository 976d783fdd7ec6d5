"""`bringup bench`: engines, rounds, figures."""
