"""PTX text as instructions, basic blocks and a table of what is supported."""
