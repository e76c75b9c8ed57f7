"""Start, watch and end a job of several processes; nothing here knows communicators."""
