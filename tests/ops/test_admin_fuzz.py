"""What schemathesis makes of the OpenAPI document: no 5xx, answers as declared, nothing without the token."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.ops.admin_world import admin

EXAMPLES = 20
HERE = Path(__file__).parent


async def test_every_call_answers_as_the_document_says_whatever_it_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the-token")
    async with admin(policy="ppd", **{"admin.token_file": str(file), "pod_drain_s": 0.1}) as a:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from schemathesis.cli import schemathesis; schemathesis()",
            "--config-file",
            str(HERE / "schemathesis.toml"),
            "run",
            f"{a.url}/openapi.json",
            "--header=Authorization: Bearer the-token",
            "--phases=examples,coverage,fuzzing",
            f"--max-examples={EXAMPLES}",
            "--seed=7",
            "--generation-deterministic",
            "--request-timeout=10",
            "--no-color",
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "schemathesis_hooks.py")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(120):
            out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
