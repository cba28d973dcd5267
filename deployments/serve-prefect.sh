# Start the Prefect server, and refuse to be seen from outside without a password.
set -eu
case "${QUANTGATE_BIND:-127.0.0.1}" in
127.* | ::1 | localhost) ;;
*)
	if [ -z "${QUANTGATE_AUTH:-}" ]; then
		echo "QUANTGATE_BIND=$QUANTGATE_BIND without QUANTGATE_AUTH=user:password: not started." >&2
		exit 2
	fi
	;;
esac
if [ -n "${QUANTGATE_AUTH:-}" ]; then
	export PREFECT_SERVER_API_AUTH_STRING="$QUANTGATE_AUTH"
	export PREFECT_API_AUTH_STRING="$QUANTGATE_AUTH"
fi
exec prefect server start --host 0.0.0.0 "$@"
