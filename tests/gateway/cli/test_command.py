"""The command line: what is printed where, and with which exit status."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from amqp_ext.sasl import hash_password, parse
from gateway.cli import command, main
from gateway.config import Configuration, Listener, Settings


def rewind(*arguments: str | Path, stdin: str | None = None) -> Result:
    """One run of the command, in this process."""
    return CliRunner().invoke(
        main, [str(argument) for argument in arguments], input=stdin, prog_name="rewind"
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings that `serve` was started with; the server itself is left out and ends with status 7."""
    started: list[Settings] = []

    def serve(configuration: Configuration) -> int:
        started.append(configuration.settings)
        return 7

    app = ModuleType("gateway.app")
    monkeypatch.setattr(app, "serve", serve, raising=False)
    monkeypatch.setitem(sys.modules, "gateway.app", app)
    monkeypatch.setattr(command, "NEVER_USED", ())  # other tests in this process may use them
    return started


def test_serve_without_options_serves_the_defaults(served: list[Settings]) -> None:
    """No configuration is needed, and the server's exit status is the command's."""
    result = rewind("serve")
    assert (result.exit_code, served) == (7, [Settings()])


def test_options_win_over_the_file(served: list[Settings], tmp_path: Path) -> None:
    """`--data`, `--listen` and `--admin` replace what the file says; the rest of it holds."""
    file = tmp_path / "rewind.toml"
    file.write_text("data = 'elsewhere'\n[[listener]]\nport = 1\n[log]\nlevel = 'debug'\n")
    places = ["--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--admin", "127.0.0.1:0"]
    assert rewind("serve", "--config", file, "--data", tmp_path, *places).exit_code == 7
    (settings,) = served
    assert settings.data == tmp_path
    assert settings.listeners == (Listener(port=0), Listener(host="::1", port=0))
    assert settings.admin.port == 0
    assert settings.log.level == "debug"


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_a_wrong_configuration_is_status_2_with_every_problem(
    command: str, served: list[Settings], tmp_path: Path
) -> None:
    """Each problem is a line on stderr, stdout stays empty, and nothing is started."""
    file = tmp_path / "rewind.toml"
    file.write_text("dta = 1\n[log]\nlevel = 'loud'\n")
    result = rewind(command, "--config", file)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "rewind: log.level should be 'debug', 'info', 'warning' or 'error', not \"loud\"",
        "rewind: dta is not a setting; did you mean `data`?",
    ]
    assert served == []


def test_a_wrong_option_is_status_2(served: list[Settings]) -> None:
    """An address that cannot be listened on is explained on stderr."""
    result = rewind("serve", "--listen", "5672")
    assert (result.exit_code, result.stdout, served) == (2, "", [])
    assert result.stderr.startswith("rewind: --listen 5672: the port is missing")


def test_check_config_prints_the_settings_in_effect() -> None:
    """As TOML, defaults included; `--json` has the same for programs."""
    result = rewind("check-config")
    shown = tomllib.loads(result.stdout)
    assert (result.exit_code, shown["limits"]["max_connections"]) == (0, 10_000)
    assert json.loads(rewind("check-config", "--json").stdout) == shown


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_check_config_shows_no_hash(tmp_path: Path, form: list[str]) -> None:
    """The user is listed, the hash is not."""
    stored = hash_password("secret", salt=b"0123456789abcdef")
    file = tmp_path / "rewind.toml"
    file.write_text(f'[user.ann]\npassword = "{stored}"\n')
    result = rewind("check-config", "--config", file, *form)
    assert result.exit_code == 0
    assert "ann" in result.stdout
    assert stored not in result.stdout


@pytest.mark.parametrize(("options", "typed"), [(["--stdin"], "secret\n"), ([], "secret\nsecret\n")])
def test_a_password_s_hash_is_all_there_is_on_stdout(options: list[str], typed: str) -> None:
    """The hash can be piped on, is not the same twice, and holds no password."""
    first, second = (rewind("hash-password", *options, stdin=typed) for _ in range(2))
    assert first.exit_code == 0
    for result in (first, second):
        (line,) = result.stdout.splitlines()
        parse(line)
        assert "secret" not in result.output
    assert first.stdout != second.stdout


@pytest.mark.parametrize(
    ("options", "typed", "sentence"),
    [
        ([], "secret\nsecrets\n", "do not match"),
        (["--stdin"], "\n", "a password may not be empty"),
    ],
)
def test_no_hash_is_made_of_what_is_no_password(options: list[str], typed: str, sentence: str) -> None:
    """A mistyped repetition, and nothing."""
    result = rewind("hash-password", *options, stdin=typed)
    assert result.exit_code != 0
    assert result.stdout == ""
    assert sentence in result.stderr


def test_the_package_is_the_command() -> None:
    """`python -m gateway` is `rewind`, under that name."""
    run = subprocess.run(
        [sys.executable, "-m", "gateway", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("rewind ")
    assert run.stderr == ""
