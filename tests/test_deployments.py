"""The files that operate it: loopback, a password when exposed, GPU, volume, form."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.recipes import fill_in, recipes
from tasks.quantize.task import torchrun
from tasks.spec import LaunchSpec, ReleaseSpec

HERE = Path("deployments")


def test_compose_listens_on_loopback_by_default_and_keeps_its_data() -> None:
    compose = yaml.safe_load((HERE / "compose.yaml").read_text())
    published = [
        port for service in compose["services"].values() for port in service.get("ports", [])
    ]
    assert published == ["${QUANTGATE_BIND:-127.0.0.1}:4200:4200"]
    assert set(compose["volumes"]) == {"database", "data"}


@pytest.mark.parametrize(
    ("bind", "auth", "starts"),
    [
        ("127.0.0.1", "", True),
        ("0.0.0.0", "", False),
        ("192.0.2.7", "", False),
        ("0.0.0.0", "ada:secret", True),
    ],
)
def test_the_server_is_not_exposed_without_a_password(
    tmp_path: Path, bind: str, auth: str, starts: bool
) -> None:
    stand_in = tmp_path / "prefect"
    stand_in.write_text('#!/bin/sh\necho "$@ auth=${PREFECT_SERVER_API_AUTH_STRING:-none}"\n')
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["sh", HERE / "serve-prefect.sh"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "QUANTGATE_BIND": bind}
        | ({"QUANTGATE_AUTH": auth} if auth else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is starts
    if starts:
        assert f"auth={auth or 'none'}" in done.stdout
    else:
        assert "not started" in done.stderr


def test_kubernetes_runs_get_gpu_volume_and_secret() -> None:
    template = json.loads((HERE / "kubernetes" / "base-job-template.json").read_text())
    job = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    [container] = job["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "{{ gpus }}"
    assert container["envFrom"][0]["secretRef"]["name"] == "{{ secret }}"
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/dev/shm"}
    known = set(template["variables"]["properties"])
    assert {"gpus", "secret", "volume_claim"} <= known
    in_cluster = list(yaml.safe_load_all((HERE / "kubernetes" / "quantgate.yaml").read_text()))
    claims = [part for part in in_cluster if part["kind"] == "PersistentVolumeClaim"]
    default = template["variables"]["properties"]["volume_claim"]["default"]
    assert [claim["metadata"]["name"] for claim in claims] == [default]


def test_the_other_nodes_of_a_calibration_join_where_the_run_listens() -> None:
    parts = yaml.safe_load_all((HERE / "kubernetes" / "calibrate.yaml").read_text())
    service, job = {part["kind"]: part for part in parts}.values()
    template = json.loads((HERE / "kubernetes" / "base-job-template.json").read_text())
    pod = template["job_configuration"]["job_manifest"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [command] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    name, [port] = service["metadata"]["name"], service["spec"]["ports"]
    nodes = job["spec"]["completions"] + 1
    launch = LaunchSpec(nodes=nodes, address=f"{name}:{port['port']}")
    ours = torchrun(launch)
    for option in ("--nnodes", "--master-addr", "--master-port", "--nproc-per-node"):
        assert f"{option} {ours[ours.index(option) + 1]}" in command
    assert command.endswith("-m tasks.quantize.join")


def test_every_shipped_release_is_a_deployment_with_all_its_values_in_the_form() -> None:
    listed = yaml.safe_load((HERE / "prefect.yaml").read_text())["deployments"]
    names = {item["name"] for item in listed}
    assert {"manual", "nightly", "compare", "watch"} <= names
    filled = fill_in()["release"]
    for name in recipes():
        assert name in names or name == "demo"
        spec = filled[name.replace(".", "-")]
        assert ReleaseSpec.model_validate(spec).model_dump(mode="json") == spec


def test_the_form_can_check_every_field() -> None:
    """Prefect's check drops every key called `required`, so no field may be called so."""

    def keys(node: Any) -> set[str]:
        if isinstance(node, dict):
            inner = node.get("properties")
            own = set(inner) if isinstance(inner, dict) else set()
            return own.union(*(keys(value) for value in node.values()))
        return set().union(*(keys(value) for value in node)) if isinstance(node, list) else set()

    assert "required" not in keys(ReleaseSpec.model_json_schema())
