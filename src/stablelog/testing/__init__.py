"""What stablelog is tested with, shipped so that its users can test with it too."""
