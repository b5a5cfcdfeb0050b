"""The files of the console over HTTP: their types, how they are cached, and what a page may do."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from urllib.parse import urljoin

import httpx
import pytest

from gateway.admin.console.routes import STATIC
from gateway.config import AdminListener, User
from tests.gateway.admin.conftest import Api, Serve

# --- The files of the console over HTTP -----------------------------------------------------------------------------


@pytest.fixture
def http(api: Api) -> httpx.Client:
    """The administration of a gateway without configuration."""
    return api.http


def named_by(page: str) -> list[str]:
    """The files that a page refers to."""
    return re.findall(r'(?:src|href)="([^"]+)"', page)


IMPORTS = re.compile(
    r'(?:^|[\n;])\s*(?:import|export)\s*(?:[\w*{}\s,$]*?\bfrom\s*)?"([^"]+)"|\bimport\(\s*"([^"]+)"\s*\)'
)
"""Matches the name of each module that a script imports, statically or dynamically."""


def imported_by(script: str) -> list[str]:
    """The modules that a script imports, as it writes them."""
    return [found[1] or found[2] for found in IMPORTS.finditer(script)]


def test_the_page_and_all_that_it_loads_are_there(http: httpx.Client) -> None:
    """Each file that the page or one of its files names is found, with its type, in the folder of this version."""
    front = http.get("/")
    assert front.status_code == 200
    assert front.headers["content-type"] == "text/html; charset=utf-8"
    waiting = [urljoin("/", name) for name in named_by(front.text)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        assert re.match("/console/~[0-9a-f]{16}/", path), path
        found = http.get(path)
        assert found.status_code == 200, path
        assert "immutable" in found.headers["cache-control"]
        if path.endswith(".js"):
            assert found.headers["content-type"] == "text/javascript; charset=utf-8"
            waiting += [urljoin(path, name) for name in imported_by(found.text)]
    assert any(path.endswith("/vendor/preact.js") for path in seen)


def test_scripts_import_their_neighbours_alone() -> None:
    """Scripts import by relative paths only: another path would load a second copy of a module, or a foreign file."""
    scripts = list(STATIC.rglob("*.js"))
    assert scripts
    imports = {(str(path), name) for path in scripts for name in imported_by(path.read_text())}
    assert [one for one in imports if not one[1].startswith(("./", "../"))] == []


def test_a_file_is_sent_compressed_or_as_it_is(http: httpx.Client) -> None:
    """As the client accepts it; both forms are the same file."""
    path = "/console/vendor/preact.js"
    source = (STATIC / "vendor" / "preact.js").read_bytes()
    with http.stream("GET", path, headers={"Accept-Encoding": "br;q=1.0, gzip;q=0.8, *;q=0.1"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(answer.iter_raw())) == source
    for accepted in ("", "identity", "gzip;q=0", "br"):
        with http.stream("GET", path, headers={"Accept-Encoding": accepted}) as answer:
            assert "content-encoding" not in answer.headers
            assert b"".join(answer.iter_raw()) == source
            assert answer.headers["vary"] == "Accept-Encoding"


def test_a_file_that_is_known_is_not_sent_again(http: httpx.Client) -> None:
    """304 if `If-None-Match` has the file's tag, alone or among others; otherwise the file is sent."""
    first = http.get("/")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'W/"x", {tag}'):
        again = http.get("/", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
        assert "content-security-policy" in again.headers
    assert http.get("/", headers={"If-None-Match": 'W/"x"'}).status_code == 200


def test_what_a_page_may_do_is_bounded(http: httpx.Client) -> None:
    """The policy allows scripts of this address only, no inline scripts, and no frame of another site."""
    for path in ("/", "/console/app.js", "/console/vendor/uplot.css"):
        headers = http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == "same-origin"


def test_the_page_has_no_script_and_no_style_in_it(http: httpx.Client) -> None:
    """A browser would not run them: the content security policy forbids inline scripts and styles."""
    page = http.get("/").text
    assert re.search(r"<script(?![^>]*\bsrc=)", page) is None
    assert "<style" not in page
    assert re.search(r"\s(?:on\w+|style)=", page) is None


def test_nothing_else_is_there(http: httpx.Client) -> None:
    """No path leads out of the folder, or to the files of another version."""
    for path in (
        "/console/",
        "/console/nothing.js",
        "/console/../pages.py",
        "/console/%2e%2e/pages.py",
        "/console/..%2fpages.py",
        "/console/~0000000000000000/app.js",
        "/console/vendor",
        "/console//etc/passwd",
    ):
        url = httpx.URL(str(http.base_url)).copy_with(raw_path=path.encode())
        assert http.get(url).status_code == 404, path


def test_anybody_may_load_the_page(serve: Serve) -> None:
    """The page and its files are public. Data needs a sign-in where users are configured."""
    http = serve(users={"ann": User(vpns=("default",))}).http
    assert http.get("/").status_code == 200
    assert http.get("/console/app.js").status_code == 200
    assert http.get("/console/nothing").status_code == 404
    assert http.get("/consoles").status_code == 401
    assert http.get("/SEMP/v2/monitor/msgVpns").status_code == 401


def test_the_console_can_be_turned_off(serve: Serve) -> None:
    """`/` is then not found, and nobody can sign in."""
    http = serve(users={"ann": User()}, admin=AdminListener(port=0, console=False)).http
    answers = [http.get(path) for path in ("/", "/console/app.js", "/session")]
    said = {"userName": "ann", "password": "secret"}
    for answer in (*answers, http.post("/session", json=said), http.delete("/session")):
        assert answer.status_code == 404
        assert "set-cookie" not in answer.headers
    assert http.get("/healthz").status_code == 200


# --- The console's libraries are the files that were fetched --------------------------------------------------------

VENDOR = STATIC / "vendor"
PACKAGES = json.loads((VENDOR / "vendored.json").read_text())
LICENCES = {"MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "0BSD"}
"""Licences that ask for no more than that their text is included."""


def test_each_file_is_as_it_was_fetched() -> None:
    """Compared by hash; every file is listed."""
    listed = {file["path"]: file["sha256"] for one in PACKAGES for file in one["files"]}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "vendored.json"
    }
    assert found == listed
    assert listed


def test_each_library_says_what_it_is() -> None:
    """Its version, the hash of its package, and its licence, whose text is next to it."""
    for one in PACKAGES:
        assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"]), one["package"]
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", one["integrity"]), one["package"]
        assert one["licence"] in LICENCES, one["package"]
        assert any(file["path"].startswith("LICENSE-") for file in one["files"]), one["package"]
