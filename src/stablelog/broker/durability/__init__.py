"""What makes writes durable: group flush, the coordinators' journals, and the disk space kept for them."""
