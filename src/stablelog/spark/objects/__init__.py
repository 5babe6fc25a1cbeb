"""Reading of topics from the objects of tiered storage, without a broker."""
