#!/bin/sh
# The first program of the image. Spark in cluster mode starts the driver with `driver` and the arguments of
# spark-submit, and executors with `executor`; it passes the rest in variables. Anything else is a command, such as
# `penstock run ...`.
set -eu

case ${1-} in
driver)
    shift
    exec spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
executor) ;;
*) exec "$@" ;;
esac

# Spark numbers the options of the JVM: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
set --
number=0
while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
    set -- "$@" "$option"
    number=$((number + 1))
done

spark=$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$spark/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
