"""The error of all that a user asked for and cannot have: commands show its message beside the usage."""


class UsageError(ValueError):
    """A command line, a file, a server or the installation is not what it should be.

    The message names the thing, the value and the way out.
    """
