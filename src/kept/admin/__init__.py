"""What is in a cluster, and changes to it that a person asks for."""
