"""An engine below a real front end. It answers like a parrot, in the steps that requests ask for."""
