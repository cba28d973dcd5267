"""Audit: what a right checkpoint is, checked on the files before any GPU time is spent."""

from tasks.gates.audit.report import audit_report
from tasks.gates.audit.result import AuditResult, Fault, Promise
from tasks.gates.audit.run import audit

__all__ = ["AuditResult", "Fault", "Promise", "audit", "audit_report"]
