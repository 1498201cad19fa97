"""The error for requests of the user that cannot be met. Commands show its message beside the usage."""


class UsageError(ValueError):
    """A command line, file, server or installation is wrong.

    The message names the thing, the value and the way out.
    """
