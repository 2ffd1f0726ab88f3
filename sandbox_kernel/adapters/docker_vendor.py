"""The part of docker-py that this package uses: contexts, and a client to build images with.

Invariants: importing this takes about 80 ms, so nothing that starts a sandbox does.
None of the exceptions of docker-py and what it stands on leaves `plain_errors`.
"""

from __future__ import annotations

import errno
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import docker
from docker.context import ContextAPI
from docker.errors import APIError, DockerException
from docker.tls import TLSConfig
from requests.exceptions import RequestException, Timeout

from sandbox_kernel.adapters import docker_errors
from sandbox_kernel.adapters.docker_address import Endpoint, Tls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox_kernel.adapters.docker_errors import Request


def read_context(name: str, why: str) -> Endpoint | None:
    """Return the endpoint of a context, or `None` if there is none or it is damaged."""
    try:
        context = ContextAPI.get_context(name)
    except Exception:  # noqa: BLE001 - docker-py raises a bare `Exception` for a damaged file
        return None
    if context is None or not context.Host:
        return None
    return Endpoint(
        url=context.Host, why=f"docker context `{name}`, {why}", tls=_from_vendor(context.TLSConfig)
    )


def _from_vendor(vendor: TLSConfig | None) -> Tls | None:
    if vendor is None:
        return None
    cert, key = vendor.cert or ("", "")
    return Tls(ca=vendor.ca_cert or "", cert=cert, key=key, verify=bool(vendor.verify))


def tls_config(tls: Tls | None) -> TLSConfig | bool:
    """Return the same in docker-py's own terms.

    Raises:
        DockerException: A certificate is missing.
    """
    return tls is not None and TLSConfig(
        client_cert=(tls.cert, tls.key) if tls.cert else None,
        ca_cert=tls.ca or None,
        verify=tls.verify,
    )


@contextmanager
def connect(where: Endpoint, version: str, seconds: float) -> Iterator[docker.APIClient]:
    """Open a client of docker-py, for one thread.

    Args:
        where: The engine, which has answered.
        version: Of the API, as agreed with it.
        seconds: For connecting, and again for each piece of an answer.
    """
    client = docker.APIClient(
        base_url=where.url, version=version, tls=tls_config(where.tls), timeout=seconds
    )
    with closing(client):
        # Proxies and `.netrc` of the environment are for the web, not for an engine.
        client.trust_env = False
        yield client


@contextmanager
def plain_errors(request: Request, seconds: float) -> Iterator[None]:
    """Turn every exception of docker-py and what it stands on into one of ours.

    Args:
        request: What was asked, for the message.
        seconds: The time-out of the calls within, for the message.
    """
    try:
        yield
        return
    except APIError as error:
        problem = docker_errors.refused(str(error.explanation or error.response.reason), request)
    except Timeout:
        problem = docker_errors.silent(seconds, request)
    except (RequestException, OSError) as error:
        problem = docker_errors.unreachable(_errno(error), request)
    except DockerException as error:
        problem = docker_errors.misconfigured(str(error))
    raise problem from None


def _errno(error: BaseException | None) -> int | None:
    """Return the `errno` at the bottom of what requests and urllib3 wrapped."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in errno.errorcode:
            return error.errno
        error = error.__cause__ or error.__context__
    return None
