"""The texts of the files of a draft."""
