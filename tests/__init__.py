"""Tests of bringup, by the folders of its source code."""
