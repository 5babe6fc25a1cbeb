"""A server of a test that answers one request."""

import contextlib
import socket
import threading


@contextlib.contextmanager
def answering(content):
    """A server that answers one request with these bytes; None to answer nothing. Yields its address and the request."""
    received, end = [], threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    received.append(connection.recv(1 << 16))
                    if content is None:
                        end.wait(60)
                    else:
                        connection.sendall(content)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            end.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)
