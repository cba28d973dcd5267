# The project with a Prefect worker, for deployments/compose.yaml and for Kubernetes:
#   docker build -f deployments/worker.Dockerfile -t quantgate-worker .
FROM python:3.11-slim
RUN useradd --create-home --uid 1000 quantgate && install -d -o quantgate /data
WORKDIR /quantgate
COPY pyproject.toml README.md LICENSE ./
COPY flows flows
COPY tasks tasks
COPY templates templates
COPY deployments deployments
RUN pip install --no-cache-dir --editable ".[quantize]" prefect-docker prefect-kubernetes
ENV QUANTGATE_ROOT=/data OMP_NUM_THREADS=1 DO_NOT_TRACK=1
USER quantgate
CMD ["prefect", "worker", "start", "--pool", "quantgate"]
