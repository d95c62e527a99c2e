"""A gRPC service and its client, by Google's own package.

    grpc_calls.py serve CERTIFICATE KEY          prints the port it listens on, until its standard input ends
    grpc_calls.py call HOST:PORT AUTHORITY NAME  makes each kind of call to NAME there, and prints what it saw

Messages are bytes as they are, so that no generated code is needed.
"""

import sys
import threading
from concurrent import futures

import grpc


def same(message):
    return message


def echo(request, context):
    context.set_trailing_metadata((("x-trailer", "kept"),))
    return request


def count(request, _context):
    for number in range(int(request)):
        yield str(number).encode()


def refuse(_request, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not like this: 100 %")


def answer_each(requests, _context):
    for request in requests:
        yield b"heard " + request


def serve(certificate, key):
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo, same, same),
        "Count": grpc.unary_stream_rpc_method_handler(count, same, same),
        "Refuse": grpc.unary_unary_rpc_method_handler(refuse, same, same),
        "Talk": grpc.stream_stream_rpc_method_handler(answer_each, same, same),
    }
    server = grpc.server(futures.ThreadPoolExecutor(4))
    for name in ("open", "closed"):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    with open(certificate, "rb") as chain, open(key, "rb") as private:
        credentials = grpc.ssl_server_credentials(((private.read(), chain.read()),))
    print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


def call(address, authority, name):
    with open(authority, "rb") as roots:
        credentials = grpc.ssl_channel_credentials(roots.read())
    port = address.rsplit(":", 1)[1]
    options = (("grpc.ssl_target_name_override", name), ("grpc.default_authority", f"{name}:{port}"))
    with grpc.secure_channel(address, credentials, options) as channel:
        answer, made = channel.unary_unary("/open/Echo", same, same).with_call(b"x" * 100_000, timeout=15)
        print("echo", len(answer), dict(made.trailing_metadata())["x-trailer"])
        print("count", b" ".join(channel.unary_stream("/open/Count", same, same)(b"5", timeout=15)).decode())
        # Each question is asked only when the one before it was answered: nothing on the way may wait for the end.
        heard, answered = [], threading.Semaphore(1)

        def questions():
            for number in range(3):
                answered.acquire(timeout=15)
                assert len(heard) == number, heard
                yield str(number).encode()

        talk = channel.stream_stream("/open/Talk", same, same)(questions(), timeout=15)
        for reply in talk:
            heard.append(reply)
            answered.release()
        print("talk", b", ".join(heard).decode())
        for path in ("/open/Refuse", "/closed/Echo"):
            try:
                channel.unary_unary(path, same, same)(b"", timeout=15)
                print("answered", path)
            except grpc.RpcError as error:
                print(path, error.code().name, error.details())


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
