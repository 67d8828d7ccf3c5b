"""What would go wrong in a run on these machines, looked for before it is started."""
