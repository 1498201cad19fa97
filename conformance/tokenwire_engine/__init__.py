"""An engine below a real front end: it answers by the parrot's law, in the steps that requests order."""
