"""Hosts on one machine: tests across real network links, real ssh and real MPI launchers.

:class:`~hosts.rack.Hosts` makes them. Each host has network, mount, UTS, IPC and PID namespaces of
its own, so that its address, host name, processes, /run, /dev/shm and /tmp are its own, too; an
sshd; and one link of limited rate to a switch, which can be cut. All else of the disk is the same
on all hosts, as it is where /home and the software lie on a file server.
"""
