"""From rules, a signature and headers to a plan and the list of its problems."""
