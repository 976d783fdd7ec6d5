"""Options, arguments and outputs that commands share."""
