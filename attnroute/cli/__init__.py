"""The `attnroute` command: one thin module a subcommand."""
