"""The `kept` command: one file a command, registration only in main."""
