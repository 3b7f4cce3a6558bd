"""Our sandboxes for Harbor: `harbor run -e harbor_environment:InterCode -p FOLDER -a AGENT`."""

import asyncio
import io
import tarfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)

import intercode
from intercode.sandbox import get_provider

ROOT = "chown,dac_override,fowner,fsetid,setgid,setuid"  # as root has them in containers


class InterCode(BaseEnvironment):
    capabilities = EnvironmentCapabilities(disable_internet=True)

    @staticmethod
    def type():
        return "intercode"

    @classmethod
    def resource_capabilities(cls):
        return EnvironmentResourceCapabilities(memory_limit=True)

    def _validate_definition(self):
        if not (self.environment_dir / "Dockerfile").exists():
            raise FileNotFoundError("environment/Dockerfile is needed")

    async def start(self, force_build):
        memory = f"{self._effective_memory_mb or 2048}M"
        limits = {"timeout": 600, "memory": memory, "output": "16M", "capabilities": ROOT}
        image, network = str(self.environment_dir / "Dockerfile"), self._network_is_public
        start, limits = get_provider().start, intercode.Limits(**limits)
        self.box = intercode.AsyncSandbox(await asyncio.to_thread(start, image, limits, network))
        await self.ensure_dirs(["/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests"])
        await self._upload_environment_dir_after_start()

    async def stop(self, delete):
        await self.box.close()

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        cwd = cwd or self.task_env_config.workdir
        user, env = self._resolve_user(user), self._merge_env(env)
        how = {"cwd": cwd, "env": env, "timeout": timeout_sec}
        if user not in (None, "root", 0):
            how["user"] = str(user)
        done = await self.box.exec(["/bin/bash", "-c", command], **how)
        out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
        return ExecResult(
            stdout=out, stderr=err, return_code=124 if done.timed_out else done.exit_code
        )

    async def upload_file(self, source_path, target_path):
        path = Path(source_path)
        await self.box.write_file(target_path, path.read_bytes(), path.stat().st_mode & 0o777)

    async def upload_dir(self, source_dir, target_dir):
        for path in filter(Path.is_file, Path(source_dir).rglob("*")):
            await self.upload_file(path, f"{target_dir}/{path.relative_to(source_dir)}")

    async def download_file(self, source_path, target_path):
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(await self.box.read_file(str(source_path)))

    async def download_dir(self, source_dir, target_dir):
        done = await self.box.exec(["tar", "-C", str(source_dir), "-cf", "-", "."])
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
            tar.extractall(target_dir, filter="data")
