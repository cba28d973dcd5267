# The serving image: an SGLang base plus the source patches. Built without network.
#
# BASE_IMAGE is name@digest (or an image id) as the Docker engine resolved it. `quantgate release`
# passes it and the rest; by hand:
#   docker build --network none --build-arg BASE_IMAGE=NAME@DIGEST .
ARG BASE_IMAGE
FROM ${BASE_IMAGE}

# Who the base runs as: patching needs to write where its packages lie, serving does not.
ARG BASE_USER=root
ARG PATCH_DIGEST=""

USER root
COPY tasks/image/patches /opt/quantgate/patches
RUN python3 -I /opt/quantgate/patches --image --expect "${PATCH_DIGEST}" \
    --manifest /opt/quantgate/manifest.json
USER ${BASE_USER}

# Labels last: none of them may decide what is patched.
ARG BASE_NAME=""
ARG BASE_DIGEST=""
ARG SOURCE=""
ARG VERSION=""
ARG REVISION=""
LABEL org.opencontainers.image.title="SGLang with the quantgate patches" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      quantgate.patch-digest="${PATCH_DIGEST}"

# Whoever starts the container tells the port; /health answers 503 while the engine loads.
ENV QUANTGATE_PORT=30000
HEALTHCHECK --interval=30s --timeout=25s --start-period=30m --retries=3 \
    CMD ["python3", "-I", "/opt/quantgate/patches/healthy.py"]
STOPSIGNAL SIGTERM
