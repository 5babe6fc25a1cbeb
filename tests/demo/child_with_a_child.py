"""A child of the demo that has started another process and waits."""

import subprocess
import sys
import time

if __name__ == "__main__":
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]):
        print("both run", flush=True)
        time.sleep(600)
