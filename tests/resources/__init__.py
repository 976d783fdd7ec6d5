"""Kills, full disks, memory and signals, in processes of their own."""
