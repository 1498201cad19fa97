"""The error for a command that cannot be executed as the user wrote it. Commands print its message."""


class UsageError(ValueError):
    """A command line, file, server or installation is wrong.

    The message names the thing, its value and the solution.
    """
