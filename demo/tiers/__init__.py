"""The third scene: a log in two tiers, read across both, read from the objects alone, and restored from them."""

TOPIC = "flights"
BUCKET = "demo"
STORE_URL = f"s3://{BUCKET}/log"
CREDENTIAL = "demo"  # the store's server accepts any
REGION = "us-east-1"
