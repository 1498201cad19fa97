"""From observations to verdicts. Nothing here touches the network."""
