"""`bringup check`: one finding for each mistake, of single faults and of combinations."""
